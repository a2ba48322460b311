"""What the page reads: Sessions and what is rated in them, transcripts, an overview of ratings (docs/page.md)."""
