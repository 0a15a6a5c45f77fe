"""Run directories kept elsewhere too, at any fsspec URL: store.py talks to it, upload.py fills it while a run trains,
fetch.py brings a run back."""
