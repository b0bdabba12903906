"""All templates by id. A new template is a module beside this one and its name in the list below."""

from __future__ import annotations

from mlxplatform.datasets.templates import format_conversion, rag_qa, self_instruct, sft_qa_pairs
from mlxplatform.datasets.templates.base import Template

_MODULES = (sft_qa_pairs, format_conversion, self_instruct, rag_qa)

TEMPLATES: dict[str, Template] = {module.TEMPLATE.id: module.TEMPLATE for module in _MODULES}
