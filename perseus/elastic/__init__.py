"""Elastic jobs: where hosts come from while a job runs, and which of them may be used.

No framework is imported here, and no engine: this runs in the launcher.
"""
