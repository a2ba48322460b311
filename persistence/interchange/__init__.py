"""The original's `message_feedback` media: read and written as FORMATS sections 12, 13, 15 and 16 say."""
