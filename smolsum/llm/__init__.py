"""Models behind an OpenAI-compatible endpoint: HTTP (`client`), attempts and deadlines (`retry`), many questions at
once (`batch`), and answers on disk, so that no question is paid for twice (`cache`)."""
