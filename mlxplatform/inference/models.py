"""Hosts as rows: which machines have a GPU, what they can serve, when they were last heard of.

Written by the gpu process of each host, about once in some seconds; the live figures of every second are in Redis
and vanish with the host. The row stays, so that an absent host is a visible fact.
"""

from __future__ import annotations

from django.db import models as orm


class Host(orm.Model):
    """One machine with one GPU. ``models`` is the list of its local models, as in its live state."""

    name = orm.CharField(max_length=64, primary_key=True)
    models = orm.JSONField(default=list)
    instance = orm.CharField(max_length=64, blank=True, default="")
    free_bytes = orm.BigIntegerField(null=True, blank=True)
    started_at = orm.DateTimeField(auto_now_add=True)
    heartbeat_at = orm.DateTimeField(null=True, blank=True, db_index=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
