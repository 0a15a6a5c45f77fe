"""Models behind an OpenAI-compatible endpoint: HTTP (`client`), attempts and budgets (`request_policy`), many questions
at once (`batch`), and answers on disk, so that no question is paid for twice (`cache`)."""
