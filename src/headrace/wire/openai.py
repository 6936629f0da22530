"""OpenAI's dialect as clients speak it: what comes in, what goes out, and how it fails.

Chat completions, completions and embeddings. The parts live in modules of their own; this is their one address.
"""

from headrace.wire.openai_answer import assemble, split
from headrace.wire.openai_call import OpenAICall
from headrace.wire.openai_errors import error_body, error_frame
from headrace.wire.openai_request import MODEL_NAME_LIMIT, fingerprint, parse
from headrace.wire.openai_text import TextAnswer, model_body, models_body

__all__ = [
    "MODEL_NAME_LIMIT",
    "OpenAICall",
    "TextAnswer",
    "assemble",
    "error_body",
    "error_frame",
    "fingerprint",
    "model_body",
    "models_body",
    "parse",
    "split",
]
