"""The scene `power-user`: one who asks for much at once and two who ask for little, under four strategies."""
