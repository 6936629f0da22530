"""The beginning of a prompt as a chain of hashes: requests that share it share the chain's head.

Engines keep what they have read of a prompt in blocks, each known by all that stands before it (vLLM's automatic prefix
caching, SGLang's RadixAttention). The chain here is made likewise: a hash per block of the prompt's text, covering
every block before it. What an instance was sent before then tells how much of a new prompt it need not read again.

The text is what chat templates make of a request, in their order: tools, then each message as role and content. Its
tokens are estimated as elsewhere, four bytes each. A block that is not full is left out: engines keep full blocks only.

Hashes are salted with the tenant, and with a secret so that nobody can compute one: who is believed to share is sent to
the same machine, and the delay of his answer would tell him that he does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

import msgspec

from headrace.wire.openai_call import OpenAICall

BLOCK_BYTES = 512
"""Text of one block: 128 tokens by the estimate."""
BLOCK_TOKENS = BLOCK_BYTES // 4
MOST_BLOCKS = 256
"""Longest chain; what comes after 128 KiB of text is not looked at."""

_HASH_BYTES = 8
_MOST_BYTES = BLOCK_BYTES * MOST_BLOCKS
_ABSENT = msgspec.Raw(b"")
_Content: TypeAlias = str | list[msgspec.Raw] | None


class _Message(msgspec.Struct):
    role: str
    content: _Content = None
    tool_calls: msgspec.Raw = _ABSENT


class _Chat(msgspec.Struct):
    messages: list[_Message]
    tools: msgspec.Raw = _ABSENT
    functions: msgspec.Raw = _ABSENT


class _Completion(msgspec.Struct):
    prompt: str | list[str] = ""


_CHAT = msgspec.json.Decoder(_Chat)
_COMPLETION = msgspec.json.Decoder(_Completion)


def prefix_of(call: OpenAICall, tenant: str, salt: bytes) -> tuple[int, ...]:
    """The chain of a chat's or a completion's prompt, of `BLOCK_TOKENS` each; empty for anything else.

    `salt` is a secret of this process, at most 64 bytes. A prompt in a form that is not known here (token numbers, say)
    has no chain either. Takes time in proportion to the text that is looked at: about 2 us for each KiB.
    """
    if len(call.body) < BLOCK_BYTES:
        return ()
    try:
        text = _text(call)
    except (msgspec.MsgspecError, UnicodeError):
        return ()
    return text_prefix(text, tenant, call.model, salt)


def text_prefix(text: bytes, tenant: str, model: str, salt: bytes) -> tuple[int, ...]:
    """The chain of a prompt's text as the engine reads it, as `prefix_of`; empty where not one block is full."""
    hasher = _prompts_of(tenant, model, salt).copy()
    # One hash that is read at the end of each block: what it says there covers all the text before.
    update, digest, digests = hasher.update, hasher.digest, list[bytes]()
    for start in range(0, min(len(text), _MOST_BYTES) - BLOCK_BYTES + 1, BLOCK_BYTES):
        update(text[start : start + BLOCK_BYTES])
        digests.append(digest())
    return struct.unpack(f">{len(digests)}Q", b"".join(digests))


def session_prefix(tenant: str, user: str, session: str, salt: bytes) -> tuple[int, ...]:
    """A chain of one block that stands for a conversation whose text is too short to have one."""
    return (int.from_bytes(_salted((tenant, user, session), salt, b"session").digest()),)


@lru_cache(maxsize=256)
def _prompts_of(tenant: str, model: str, salt: bytes) -> blake2b:
    """What every prompt of a tenant to a model begins with; to be copied."""
    return _salted((tenant, model), salt, b"prompt")


def _salted(names: Iterable[str], salt: bytes, kind: bytes) -> blake2b:
    """A hasher that has seen the names, each with its length: none can be continued by another or by a prompt."""
    hasher = blake2b(digest_size=_HASH_BYTES, key=salt, person=kind)
    for name in names:
        text = name.encode(errors="replace")
        hasher.update(b"%d:%b" % (len(text), text))
    return hasher


def _text(call: OpenAICall) -> bytes:
    if call.endpoint == "chat":
        return _chat_text(_CHAT.decode(call.body))
    if call.endpoint == "completions":
        prompt = _COMPLETION.decode(call.body).prompt
        # Several prompts in one request are several to the engine; the first one stands for them.
        return (prompt if isinstance(prompt, str) else prompt[0] if prompt else "").encode()
    return b""


def _chat_text(chat: _Chat) -> bytes:
    parts = [bytes(chat.tools), bytes(chat.functions)]
    size = 0
    for message in chat.messages:
        content = message.content
        if content is None:
            text = b""
        elif isinstance(content, str):
            text = content.encode()
        else:
            text = b"".join([bytes(part) for part in content])
        parts += (b"\n", message.role.encode(), b"\n", text, bytes(message.tool_calls))
        size += len(text)
        if size >= _MOST_BYTES:
            break
    return b"".join(parts)
