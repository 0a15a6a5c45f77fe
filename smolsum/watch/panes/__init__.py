"""What each pane shows: a function from a board and a size to a block. A new pane is a file here and a line in
`watch/layout.py`."""
