// What a test asks of the page: text that is hard to read, and things wider than the screen.

(() => {
  const parsed = (color) => {
    const [red, green, blue, alpha = 1] = color.match(/[\d.]+/g).map(Number);
    return { red, green, blue, alpha };
  };
  const over = (top, below) => {
    const mix = (one, other) => one * top.alpha + other * (1 - top.alpha);
    return { red: mix(top.red, below.red), green: mix(top.green, below.green), blue: mix(top.blue, below.blue), alpha: 1 };
  };
  // WCAG 2: relative luminance and contrast.
  const luminance = ({ red, green, blue }) => {
    const [r, g, b] = [red, green, blue].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const color = parsed(getComputedStyle(at).backgroundColor);
      if (color.alpha > 0) layers.push(color);
      if (color.alpha === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), { red: 255, green: 255, blue: 255, alpha: 1 });
  };
  const isShown = (node) => node.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true })
    && node.getBoundingClientRect().width > 1;

  globalThis.audit = {
    /** Texts below 4.5 : 1, with their contrast; and how many were looked at. */
    faint() {
      const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
      let seen = 0;
      while (texts.nextNode()) {
        const { textContent, parentElement } = texts.currentNode;
        if (!textContent.trim() || !isShown(parentElement) || parentElement.closest("script, noscript")) continue;
        const style = getComputedStyle(parentElement), below = ground(parentElement);
        const color = parentElement instanceof SVGElement ? style.fill : style.color;
        const ratio = contrast(over(parsed(color), below), below);
        seen += 1;
        if (ratio < 4.5) found.push([textContent.trim().slice(0, 40), Math.round(ratio * 100) / 100]);
      }
      return { seen, found };
    },
    /** By how many pixels the page is wider than the screen. */
    overhang() { return document.documentElement.scrollWidth - innerWidth; },
  };
})();
