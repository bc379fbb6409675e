"""Files and folders, local and remote: opened, read and written in one way."""
