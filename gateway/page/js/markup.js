// The one place where HTML enters the page: Markdown that the gateway rendered and sanitised (gateway/reading/markdown.py).
// The page's policy (require-trusted-types-for) refuses HTML from anywhere else.

const policy = globalThis.trustedTypes?.createPolicy("markdown", { createHTML: (html) => html });

/** The gateway's HTML, as what `innerHTML` takes. */
export const safeHtml = (html) => policy?.createHTML(html) ?? html;
