"""A small transformer learns the letters of Moby-Dick as a trial: clipped gradients, warm-up, perplexity by a reducer.

    python examples/text_trial.py                                     # alone
    torchrun --nproc-per-node 2 examples/text_trial.py                # a fixed world
    everstep run --nproc-per-node 2 examples/text_trial.py            # kill workers as you like

    python examples/text_trial.py --write UUID                        # use a checkpoint; the training prints its uuid

`--write` creates the trial from the checkpoint's own code and hyperparameters, to write a few lines."""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader, Dataset

from everstep import pytorch
from everstep.experimental import client

TEXT = Path(__file__).parent / "data" / "moby-dick.txt"
HELD_OUT = 20_000  # letters at the end of the text


class Windows(Dataset):
    """The text, cut into consecutive windows: the letters of each, and for each letter the one that follows."""

    def __init__(self, letters, length):
        self.letters, self.length = letters, length

    def __len__(self):
        return (len(self.letters) - 1) // self.length

    def __getitem__(self, position):
        first = position * self.length
        window = self.letters[first : first + self.length + 1]
        return {"letters": window[:-1], "following": window[1:]}


class LanguageModel(nn.Module):
    def __init__(self, num_letters, length, width, layers):
        super().__init__()
        self.letter, self.place = nn.Embedding(num_letters, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_letters)

    def forward(self, letters):
        length = letters.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=letters.device)
        x = self.letter(letters) + self.place(torch.arange(length, device=letters.device))
        return self.head(self.norm(self.blocks(x, mask=mask, is_causal=True)))


class TextTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        text = TEXT.read_text()
        self.alphabet = sorted(set(text))
        number = {letter: index for index, letter in enumerate(self.alphabet)}
        self.letters = torch.tensor([number[letter] for letter in text])
        self.length = context.get_hparam("length")
        model = LanguageModel(
            len(self.alphabet), self.length, context.get_hparam("width"), context.get_hparam("layers")
        )
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(model.parameters(), lr=context.get_hparam("lr")))
        warm_up = context.get_hparam("warm_up")
        scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / warm_up))
        context.wrap_lr_scheduler(scheduler, pytorch.LRScheduler.StepMode.STEP_EVERY_BATCH)
        self.perplexity = context.wrap_reducer(perplexity, name="perplexity", for_training=False)

    def build_training_data_loader(self):
        windows = self.context.get_hparam("windows")
        num_seen = windows * self.length + 1 if windows else len(self.letters) - HELD_OUT
        seen = Windows(self.letters[:num_seen], self.length)
        return DataLoader(seen, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(Windows(self.letters[-HELD_OUT:], self.length), batch_size=100)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda parameters: nn.utils.clip_grad_norm_(parameters, max_norm=1.0)
        )
        return {"loss": loss, "bits": loss.detach() / math.log(2)}

    def evaluate_batch(self, batch, batch_idx):
        loss = self.loss(batch)
        self.perplexity.update((loss.item(), len(batch["letters"])))
        return {"validation_loss": loss}

    def loss(self, batch):
        return F.cross_entropy(self.model(batch["letters"]).flatten(0, 1), batch["following"].flatten())

    def write(self, num_letters):
        """Continue the text's first letters."""
        self.model.eval()
        letters, generator = self.letters[:64], torch.Generator().manual_seed(0)
        with torch.no_grad():
            for _ in range(num_letters):
                logits = self.model(letters[None, -self.length :].to(self.context.device))[0, -1].cpu()
                following = torch.multinomial((logits / 0.8).softmax(dim=0), 1, generator=generator)
                letters = torch.cat([letters, following])
        return "".join(self.alphabet[index] for index in letters)


def perplexity(losses):
    """From the losses of all validation batches, each with its number of windows."""
    windows = sum(number for _, number in losses)
    return math.exp(sum(loss * number for loss, number in losses) / windows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=32, help="samples of all workers, in 4 micro-batches")
    parser.add_argument("--windows", type=int, help="use only this many, from the beginning of the text")
    parser.add_argument("--length", type=int, default=64, help="letters in a window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=50, help="batches")
    parser.add_argument("--report-every", type=int, default=50, metavar="BATCHES")
    parser.add_argument("--write", metavar="UUID", help="write a few lines with this checkpoint's model, then exit")
    args = vars(parser.parse_args())
    epochs, report_every, uuid = args.pop("epochs"), args.pop("report_every"), args.pop("write")

    if uuid:
        trial = pytorch.load_trial_from_checkpoint_path(client.get_checkpoint(uuid).download())
        print(trial.write(300))
        return
    with pytorch.init(hparams=args, exp_conf={"searcher": {"metric": "validation_loss"}}, micro_batches=4) as context:
        pytorch.Trainer(TextTrial(context), context).fit(
            max_length=pytorch.Epoch(epochs),
            validation_period=pytorch.Batch(4 * report_every),
            reporting_period=pytorch.Batch(report_every),
        )


if __name__ == "__main__":
    main()
