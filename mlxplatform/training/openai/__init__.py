"""OpenAI's ``fine_tuning.jobs`` over the platform's fine-tune jobs: parse (body → order), render (job → object), views."""
