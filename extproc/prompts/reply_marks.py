"""What a chat template writes around a reply, to find the replies in a prompt that comes without messages.

Owns one search over the bytes of a prompt. Refuses to know templates: its caller renders the three tiny chats
that `learn` needs.
"""

from __future__ import annotations

from dataclasses import dataclass

QUESTION, REPLY = "smetric-question", "smetric-reply"  # contents of the tiny chats; no template writes these words

_SHORTEST = 3  # bytes: a shorter opening would be found in any text


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands before a reply and after it. Without an opening no reply is ever found."""

    opening: bytes = b""
    generation: bytes = b""  # what follows the opening where the model is to begin, such as `<think>`
    closing: bytes = b""

    def find(self, prompt: bytes) -> tuple[int, int]:
        """How many replies a prompt holds, and how many of its bytes are history: up to the end of the last one.

        An opening at the very end is where the model is to begin, and no reply. A reply that nothing closes goes on to
        the end.
        """
        if len(self.opening) < _SHORTEST:
            return 0, 0
        replies, last = prompt.count(self.opening), prompt.rfind(self.opening)
        if replies and prompt[last + len(self.opening) :].strip() in (b"", self.generation):
            replies, last = replies - 1, prompt.rfind(self.opening, 0, last)
        if not replies:
            return 0, 0
        begin = last + len(self.opening)
        for closing in (self.closing, self.closing.strip()):
            end = prompt.find(closing, begin) if closing.strip() else -1
            if end >= 0:
                return replies, end + len(closing)
        return replies, len(prompt)


def learn(asked: str, prompted: str, answered: str) -> Marks:
    """The marks of a template from three renderings: of a question, of the same with a generation prompt, and of the
    question with a reply."""
    _, found, rest = answered.partition(QUESTION)
    between, replied, closing = rest.partition(REPLY)
    if not found or not replied:
        return Marks()
    generation = prompted[len(asked) :] if prompted.startswith(asked) else ""
    # A generation prompt may go on to where the model begins to think, which finished replies do not show.
    length = next((n for n in range(len(generation), 0, -1) if generation[:n].strip() in between), 0)
    opening = generation[:length].strip() or between.strip()
    return Marks(opening.encode(), generation[length:].strip().encode(), closing.encode())
