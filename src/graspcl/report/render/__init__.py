"""Renderers of tables and figures: terminal, CSV, Markdown and LaTeX (text), pages (html), PNG and SVG (images)."""
