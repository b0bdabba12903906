"""``/api/memory/*``, ``/v1/memory/synthesize`` and ``/mcp/memory`` over HTTP."""
