"""What a chat template tells of the way in which chats are rendered."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("tokenizers")

from epp.apis.rendering import PAST_REASONING, REASONING, UNCHOSEN_TOOLS, Rendering, by_name
from epp.request.tokenizers import Tokenizers
from epp.tokens.optional_parts import OptionalParts
from epp.tokens.template import ChatTemplate
from epp.types import RequestInfo

BOTH = frozenset({PAST_REASONING, REASONING})
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
THINKS = "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}{% endfor %}"
#: Qwen's and GLM's way: what was thought since a user spoke.
SINCE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<{{ m.role }}>"
    "{% if loop.index0 > ns.last %}{{ m.reasoning }}{% endif %}{{ m.content }}{% endfor %}"
)  # fmt: skip
CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids are nine characters') }}{% endif %}"
    "{{ c.function.name }}[CALL_ID]{{ c.id }}{% endfor %}{{ m.content }}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (PLAIN, {"dropped": BOTH}),
        (THINKS, {}),
        (SINCE, {"dropped": frozenset({PAST_REASONING})}),
        (CALLS, {"dropped": BOTH, "prints_ids": True}),
        (PARTS, {"dropped": BOTH, "separator": ""}),
        ("{{ raise_exception('nothing') }}", {}),
    ],
)
def test_a_template_tells_how_it_renders_chats(source: str, told: dict[str, Any]) -> None:
    assert ChatTemplate(source).rendering() == Rendering(lists_first=False, **told)


def test_a_template_decides_before_the_name_and_the_engine_of_tools_alone() -> None:
    class Model:
        rendering = ChatTemplate(SINCE).rendering()

    optional = OptionalParts()
    models = {"mistral-here": cast("Any", Model)}
    tokenizers = Tokenizers(models, 10.0, optional=optional, block_bytes=256, on_estimate=lambda _: None)
    assert tokenizers.rendering("mistral-here") == Model.rendering
    assert tokenizers.rendering("mistral-elsewhere") == by_name("mistral")
    for name in ("mistral-here", "mistral-elsewhere"):
        parts = dict.fromkeys((REASONING, UNCHOSEN_TOOLS), 4000)
        request = RequestInfo(model=name, text_bytes=12_000, optional=parts)
        for _ in range(3):
            optional.observe(request, 1000, 4.0)
    assert tokenizers.rendering("mistral-here").dropped == {PAST_REASONING, UNCHOSEN_TOOLS}
    elsewhere = tokenizers.rendering("mistral-elsewhere")
    assert elsewhere.dropped == {REASONING, UNCHOSEN_TOOLS}
    assert elsewhere.prints_ids
    tokenizers.close()
