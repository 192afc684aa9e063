"""The site worker's Celery app: everything in the background that touches the database.

`celery -A chatsite.celery worker -B -P threads -Q site` runs it; beat belongs into one process alone. Broker settings
are those of the GPU workers' app, so that either can send the other a task by name. No task bodies here.
"""

from __future__ import annotations

import os
import signal

from celery import Celery
from celery.signals import beat_embedded_init, worker_ready
from django.conf import settings

from chatsite.server_user import die_with_parent
from inference.celery import SITE_QUEUE, configure

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "chatsite.settings")

SWEEP_SECONDS = 2.0
HEARTBEAT_SECONDS = 2.0
DRAFTS_SECONDS = 3_600.0
RETENTION_SECONDS = 3_600.0
HEARTBEAT_TASK = "ops.heartbeat"

app = configure(Celery("smolfleet-site"), settings.INFERENCE, "site")
app.conf.update(
    task_default_queue=SITE_QUEUE,
    beat_scheduler="celery.beat:Scheduler",  # seconds apart: nothing worth a file that a killed beat may leave broken
    beat_schedule={
        name: {
            "task": task,
            "schedule": seconds,
            "options": {"queue": SITE_QUEUE, "expires": seconds},  # behind one that waited so long comes a younger one
        }
        for name, task, seconds in (
            ("sweep", "chat.sweep", SWEEP_SECONDS),
            ("heartbeat", HEARTBEAT_TASK, HEARTBEAT_SECONDS),
            ("drafts", "chat.sweep_drafts", DRAFTS_SECONDS),
            ("retention", "privacy.retain", RETENTION_SECONDS),
        )
    },
)
app.autodiscover_tasks(["chatsite.chat", "chatsite.privacy", "chatsite.ops"])


@beat_embedded_init.connect  # type: ignore[untyped-decorator]
def end_with_worker(**_: object) -> None:
    """Beat is a process of its own below the worker; a killed worker must not leave it ringing for ever."""
    ask_kernel = die_with_parent(signal.SIGKILL, parent=os.getppid())
    if ask_kernel is not None:
        ask_kernel()


@worker_ready.connect  # type: ignore[untyped-decorator]
def give_first_sign_of_life(**_: object) -> None:
    """At once, through the queue like all later ones; beat would wait its interval first."""
    app.send_task(HEARTBEAT_TASK, queue=SITE_QUEUE, expires=HEARTBEAT_SECONDS)
