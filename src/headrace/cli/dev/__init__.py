"""`headrace dev`: a gateway with two mock engines that follows changes of its code and its configuration."""
