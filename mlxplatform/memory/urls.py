"""Routes of the memory."""

from django.urls import path, re_path

from mlxplatform.http.views import endpoint
from mlxplatform.memory.views import read, write

urlpatterns = [
    path("api/memory/vaults", endpoint(GET=read.vaults, POST=write.init)),
    path("api/memory/vaults/<str:name>", endpoint(PATCH=write.change_vault)),
    path("api/memory/init", endpoint(POST=write.init)),
    path("api/memory/status", endpoint(GET=read.status)),
    path("api/memory/list", endpoint(GET=read.page_list)),
    path("api/memory/search", endpoint(GET=read.search)),
    path("api/memory/article", endpoint(GET=read.article)),
    path("api/memory/toc", endpoint(GET=read.toc)),
    path("api/memory/section", endpoint(GET=read.section)),
    path("api/memory/links", endpoint(GET=read.links)),
    path("api/memory/history", endpoint(GET=read.history)),
    path("api/memory/diff", endpoint(GET=read.diff)),
    path("api/memory/tools", endpoint(GET=read.tool_list)),
    path("api/memory/tools/<str:name>", endpoint(POST=read.tool_call)),
    path("api/memory/import", endpoint(POST=write.import_conversations)),
    path("api/memory/synthesize", endpoint(GET=write.preview_synthesis, POST=write.synthesize)),
    path("v1/memory/synthesize", endpoint(GET=write.preview_synthesis, POST=write.synthesize)),
    path("api/memory/runs", endpoint(GET=write.run_list)),
    path("api/memory/runs/<str:run_id>", endpoint(GET=write.run_detail)),
    path("api/memory/runs/<str:run_id>/revert", endpoint(POST=write.run_revert)),
    path("api/memory/changes", endpoint(GET=write.change_list)),
    path("api/memory/changes/<str:change_id>", endpoint(GET=write.change_detail)),
    re_path(r"^api/memory/changes/(?P<change_id>[^/]+)/(?P<action>accept|reject|revert)$", endpoint(POST=write.change_act)),
    path("api/memory/forget", endpoint(POST=write.forget_this)),
    path("api/memory/questions", endpoint(GET=write.question_list, POST=write.question_make)),
    path("api/memory/questions/<int:question_id>", endpoint(DELETE=write.question_remove)),
    path("mcp/memory", endpoint(POST=read.mcp_endpoint)),
]
