"""Rows: inference calls of batches and datasets, below interactive priority, durable and never repeated.

The orchestrator (a job in a cpu worker) asks for calls through :mod:`mlxplatform.rows.run`. Calls are kept in
SQL, keyed within their job, and travel to a GPU host in chunk messages that carry nothing but a chunk id and
a fence. The gpu side runs a chunk and commits results under that fence. Redis may be wiped and any process
killed at any moment: what SQL says is unfinished is sent again, and a finished call is never run twice.
"""
