"""All templates by id. A new template is a module beside this one and its name in the list below."""

from __future__ import annotations

from mlxplatform.datasets.templates import (
    answer_fill,
    back_translation,
    code_completion,
    column_prompts,
    cot_synthesis,
    dpo_pref_pairs,
    evol_instruct,
    format_conversion,
    from_batch,
    from_conversations,
    hf_dataset_import,
    magpie,
    multi_turn_chat,
    persona_qa,
    preference_pairs,
    prompt_reconstruction,
    rag_qa,
    self_instruct,
    sft_qa_pairs,
    structured_extraction,
    style_transfer,
    tool_use_traces,
    topic_tree,
    translation,
    verified_code,
)
from mlxplatform.datasets.templates.base import Template

#: In the order in which people see them: without a model, from texts, invented, judged.
_MODULES = (
    sft_qa_pairs,
    dpo_pref_pairs,
    code_completion,
    hf_dataset_import,
    format_conversion,
    style_transfer,
    self_instruct,
    prompt_reconstruction,
    multi_turn_chat,
    tool_use_traces,
    rag_qa,
    cot_synthesis,
    verified_code,
    column_prompts,
    answer_fill,
    evol_instruct,
    magpie,
    persona_qa,
    topic_tree,
    preference_pairs,
    structured_extraction,
    translation,
    back_translation,
    from_batch,
    from_conversations,
)

TEMPLATES: dict[str, Template] = {module.TEMPLATE.id: module.TEMPLATE for module in _MODULES}
