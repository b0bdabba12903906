"""Webhooks: telling another program that a job or batch has ended, signed, and again until it listens.

The news is written in the transaction that made it true, so none is lost and none is invented. Delivery is at
least once: receivers tell repetitions by the ``webhook-id`` header.
"""
