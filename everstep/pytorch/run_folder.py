def choose(base, *, name, digest, job, length):
    folder = base / f"{name}-{digest}" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def mark_finished(folder, progress): ...
