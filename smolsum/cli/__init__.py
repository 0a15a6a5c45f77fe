"""One module a command: its flags, its help, and what it calls. Imports what it runs inside, as help must be quick."""
