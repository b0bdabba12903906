from django.apps import AppConfig

from mlxplatform.jobs.kinds import JobKind, register


class TrainingConfig(AppConfig):
    name = "mlxplatform.training"
    label = "training"

    def ready(self) -> None:
        # One of each at a time: the lease would let them alternate, but two sets of weights need not fit.
        register(
            JobKind(
                "quantize",
                "workers.tasks.training:quantize",
                queue="gpujobs",
                concurrency=1,
                title="Quantization",
                ended="mlxplatform.library.names:job_ended",
            )
        )
        register(
            JobKind(
                "finetune",
                "workers.tasks.training:finetune",
                queue="gpujobs",
                pausable=True,
                concurrency=1,
                title="Fine-tune",
                ended="mlxplatform.training.finetuning:ended",
            )
        )
        # What is made from finished adapters: short, and harmless to repeat.
        for kind, runner, title in (
            ("fuse", "workers.tasks.adapters:fuse", "Fuse an adapter"),
            ("merge_adapters", "workers.tasks.adapters:merge", "Merge adapters"),
            ("export_adapter", "workers.tasks.adapters:export", "Export an adapter"),
            ("evaluate_adapter", "workers.tasks.evaluation:evaluate", "Evaluate an adapter"),
        ):
            register(JobKind(kind, runner, queue="gpujobs", title=title, ended="mlxplatform.library.names:job_ended"))
        from mlxplatform.files import service as files
        from mlxplatform.training.data import held_files

        files.holders.append(held_files)
