"""The sixteen loops on which the boundary rule was designed. Each marks its true iterations for the recorder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from tests.support.loops.recorder import Recorder

Loop = Callable[[Recorder], None]


def mlp(inputs: int = 8, outputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def loader(batches: int, batch: int = 4, inputs: int = 8, workers: int = 0) -> DataLoader[Any]:
    dataset = TensorDataset(torch.randn(batches * batch, inputs), torch.randint(0, 4, (batches * batch,)))
    return DataLoader(dataset, batch_size=batch, num_workers=workers)


def cnn_with_loader_and_evaluation(recorder: Recorder, workers: int = 0) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    train, held_out = loader(10, inputs=64, workers=workers), loader(10, inputs=64)
    for _ in range(2):
        for images, labels in train:
            with recorder.iteration():
                optimizer.zero_grad()
                criterion(model(images.view(-1, 1, 8, 8)), labels).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            for images, labels in held_out:
                with recorder.iteration():
                    criterion(model(images.view(-1, 1, 8, 8)), labels)
        model.train()


def cnn_with_loader_workers(recorder: Recorder) -> None:
    cnn_with_loader_and_evaluation(recorder, workers=2)


def transformer_with_accumulation(recorder: Recorder) -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(10):
        with recorder.iteration():
            optimizer.zero_grad()
            for _ in range(4):
                model(torch.randn(2, 5, 16)).square().mean().backward()
            optimizer.step()


def evaluate(recorder: Recorder, model: nn.Module, count: int) -> None:
    """Forwards without gradients, each an iteration of its own."""
    with torch.no_grad():
        for _ in range(count):
            with recorder.iteration():
                model(torch.randn(4, 8))


def stateful_lstm_with_two_roots(recorder: Recorder) -> None:
    recurrent, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 4)
    optimizer = torch.optim.Adam([*recurrent.parameters(), *head.parameters()])
    state: Any = None
    for _ in range(12):
        with recorder.iteration():
            optimizer.zero_grad()
            hidden, state = recurrent(torch.randn(2, 6, 4), state)
            head(hidden).square().mean().backward()
            optimizer.step()
            state = tuple(part.detach() for part in state)


def gan(recorder: Recorder, critic: int = 1) -> None:
    generator, discriminator = mlp(4, 8), mlp(8, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters())
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters())
    for _ in range(12):
        with recorder.iteration():
            for _ in range(critic):
                fake = generator(torch.randn(4, 4))
                discriminator_optimizer.zero_grad()
                (discriminator(fake.detach()).mean() - discriminator(torch.randn(4, 8)).mean()).backward()
                discriminator_optimizer.step()
            generator_optimizer.zero_grad()
            (-discriminator(fake).mean()).backward()
            generator_optimizer.step()


def gan_with_three_critic_steps(recorder: Recorder) -> None:
    gan(recorder, critic=3)


def distillation_then_evaluation(recorder: Recorder) -> None:
    teacher, student = mlp().eval(), mlp()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for _ in range(10):
        with recorder.iteration():
            images = torch.randn(4, 8)
            with torch.no_grad():
                target = teacher(images)
            optimizer.zero_grad()
            functional.mse_loss(student(images), target).backward()
            optimizer.step()
    student.eval()
    evaluate(recorder, student, 5)


def inference(recorder: Recorder) -> None:
    model = mlp().eval()
    evaluate(recorder, model, 20)


def lbfgs(recorder: Recorder) -> None:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    images = torch.randn(4, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(images).square().mean()
        loss.backward()
        return loss

    for _ in range(10):
        with recorder.iteration():
            optimizer.step(closure)


def accelerate_loop(recorder: Recorder) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(10))
    for _ in range(2):
        for images, labels in batches:
            with recorder.iteration():
                optimizer.zero_grad()
                accelerator.backward(functional.cross_entropy(model(images), labels))
                optimizer.step()


def lightning_classifier() -> Any:
    """A Lightning module without marks: a loop adds those of its iterations."""
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Classifier


def lightning_fit(module: Any, *loaders: DataLoader[Any], **options: Any) -> None:
    """Train quietly, and leave no files behind."""
    import lightning

    with tempfile.TemporaryDirectory() as folder:
        lightning.Trainer(
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        ).fit(module, *loaders)


def lightning_train_and_validate(recorder: Recorder) -> None:
    class Module(lightning_classifier()):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            recorder.begin()

        def on_train_batch_end(self, *_: Any) -> None:
            recorder.end()

        on_validation_batch_start = on_train_batch_start
        on_validation_batch_end = on_train_batch_end

    lightning_fit(Module(), loader(10), loader(10), max_epochs=2, num_sanity_val_steps=0)


def hugging_face_trainer_with_accumulation(recorder: Recorder) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": functional.cross_entropy(self.net(x), labels)}

    class Callback(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            recorder.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            recorder.end()

    rows = [{"x": torch.randn(8), "labels": torch.tensor(one % 4)} for one in range(48)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
        )
        Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[Callback()]).train()


def compiled_model(recorder: Recorder) -> None:
    plain = mlp()
    model = torch.compile(plain, backend="aot_eager")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(20):
        with recorder.iteration():
            images = torch.randn(4, 8)
            optimizer.zero_grad()
            loss = model(images).square().mean()
            recorder.work()
            loss.backward()
            recorder.work()
            optimizer.step()


def inference_with_gradients_forgotten(recorder: Recorder) -> None:
    model = mlp().eval()
    for _ in range(20):
        with recorder.iteration():
            model(torch.randn(4, 8))


def functional_without_modules(recorder: Recorder) -> None:
    weight = torch.randn(8, 4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for _ in range(10):
        with recorder.iteration():
            recorder.work()
            loss = (torch.randn(4, 8) @ weight).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def gradients_without_optimizer(recorder: Recorder) -> None:
    model = mlp()
    for _ in range(12):
        with recorder.iteration():
            model.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()


LOOPS: dict[str, Loop] = {
    "CNN, loader, evaluation": cnn_with_loader_and_evaluation,
    "CNN, loader with 2 workers": cnn_with_loader_workers,
    "transformer, accumulation x4, no loader": transformer_with_accumulation,
    "stateful LSTM, two roots": stateful_lstm_with_two_roots,
    "GAN 1:1, no loader": gan,
    "GAN 3:1 critic": gan_with_three_critic_steps,
    "distillation, then evaluation": distillation_then_evaluation,
    "inference": inference,
    "LBFGS": lbfgs,
    "accelerate": accelerate_loop,
    "Lightning, training and validation": lightning_train_and_validate,
    "Hugging Face Trainer, accumulation x2": hugging_face_trainer_with_accumulation,
    "torch.compile model": compiled_model,
    "inference, no_grad forgotten": inference_with_gradients_forgotten,
    "functional, no module": functional_without_modules,
    "gradients without optimizer": gradients_without_optimizer,
}
