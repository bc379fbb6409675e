"""Teach a small transformer to write like Melville, letter by letter, on workers that come and go.

    python examples/language_model.py                                 # alone
    torchrun --nproc-per-node 2 examples/language_model.py            # a fixed world
    everstep run --nproc-per-node 2 examples/language_model.py        # kill workers as you like

A sample is a window of the text: its letters, and for each of them the letter that follows. Adam with linear warm-up;
gradients are clipped. At the end it prints the loss on unseen text and a few lines that the model writes: the same ones
in every run."""

import argparse
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  its usual name
from torch.utils.data import DataLoader, Dataset

from everstep import ElasticTrainer

TEXT = Path(__file__).parent / "data" / "moby-dick.txt"
HELD_OUT = 20_000  # letters at the end of the text


class Windows(Dataset):
    """The text, cut into consecutive windows."""

    def __init__(self, letters, length):
        self.letters, self.length = letters, length

    def __len__(self):
        return (len(self.letters) - 1) // self.length

    def __getitem__(self, position):
        first = position * self.length
        window = self.letters[first : first + self.length + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mixer_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mixer = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        attended = F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mixer(self.mixer_norm(x))


class LanguageModel(nn.Module):
    def __init__(self, num_letters, length, width, layers, heads):
        super().__init__()
        self.letter, self.place = nn.Embedding(num_letters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_letters)

    def forward(self, letters):
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letter(letters) + self.place(places))))


def next_letter_loss(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def evaluate(model, windows, device):
    model.eval()
    with torch.no_grad():
        losses = [
            next_letter_loss(model, i.to(device), t.to(device)).item()
            for i, t in DataLoader(windows, 100, drop_last=True)
        ]
    return sum(losses) / len(losses)


def write(model, letters, length, num_letters):
    """Continue these letters."""
    model.eval()
    generator = torch.Generator(letters.device).manual_seed(0)
    with torch.no_grad():
        for _ in range(num_letters):
            logits = model(letters[None, -length:])[0, -1]
            following = torch.multinomial((logits / 0.8).softmax(dim=0), 1, generator=generator)
            letters = torch.cat([letters, following])
    return letters


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8, help="samples per micro-batch; a global batch has 4")
    parser.add_argument("--windows", type=int, help="use only this many, from the beginning of the text")
    parser.add_argument("--length", type=int, default=64, help="letters in a window")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=50, help="steps")
    args = parser.parse_args()

    text = TEXT.read_text()
    alphabet = sorted(set(text))
    number = {letter: index for index, letter in enumerate(alphabet)}
    letters = torch.tensor([number[letter] for letter in text])
    num_seen = args.windows * args.length + 1 if args.windows else len(letters) - HELD_OUT
    seen, unseen = Windows(letters[:num_seen], args.length), Windows(letters[-HELD_OUT:], args.length)

    torch.manual_seed(0)
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(seen, batch_size=args.batch_size, shuffle=True)
    model = LanguageModel(len(alphabet), args.length, args.width, args.layers, heads=4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / args.warm_up))
    trainer = ElasticTrainer(model, loader, micro_batches=4)
    optimizer, scheduler = trainer.prepare(optimizer, scheduler)

    for epoch in trainer.epochs(args.epochs):
        model.train()
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            with trainer.step():
                optimizer.zero_grad()
                loss = next_letter_loss(model, inputs, targets)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
                optimizer.step()
                scheduler.step()
                if trainer.num_steps % 50 == 1 and trainer.is_last_micro_batch and trainer.rank == 0:
                    print(f"epoch {epoch}  step {trainer.num_steps:4}  loss {loss.item():.3f}", flush=True)

    if trainer.rank == 0:
        loss = evaluate(model, unseen, device)
        print(f"loss on unseen text {loss:.3f} ({loss / math.log(2):.2f} bits per letter)")
        print("".join(alphabet[index] for index in write(model, letters[:64].to(device), args.length, 300)))


if __name__ == "__main__":
    main()
