// Theme: light or dark, and the colours that drawings need as numbers.

// Eight hues near those of Okabe and Ito, moved until protanopes and deuteranopes tell every pair
// apart and each stands out from the ground (a test measures both). From the ninth head on the hues
// repeat with dashed lines; every head also has its number.
const HEAD_COLOURS = {
  light: ["#026cc4", "#af3d00", "#53977b", "#892569", "#ca7700", "#3195b9", "#908a44", "#26231c"],
  dark: ["#4284fa", "#d3663b", "#7de29f", "#ba7395", "#f59c00", "#8bbdff", "#ffff83", "#dff5ff"],
};
const SHADES = 128; // steps of a colour scale, from nothing to all

const preferredDark = window.matchMedia("(prefers-color-scheme: dark)");
const drawings = new Set(); // functions that draw a canvas again when the theme has changed

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen || (preferredDark.matches ? "dark" : "light");
}

function headColour(head) {
  const colours = HEAD_COLOURS[theme()];
  return colours[head % colours.length];
}

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Colours from nothing to `colour` (#rrggbb): three bytes a shade. */
function shades(colour) {
  const channels = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
  const start = channels(cssColour("--zero"));
  const end = channels(colour);
  const scale = new Uint8ClampedArray((SHADES + 1) * 3);
  for (let i = 0; i <= SHADES; i += 1) {
    const share = (i / SHADES) ** 0.8; // weak values stay visible
    for (let c = 0; c < 3; c += 1) scale[i * 3 + c] = start[c] + share * (end[c] - start[c]);
  }
  return scale;
}

/** paint(value, bytes, at) for values from -limit to limit: blue below zero, orange above. */
function signedScale(limit) {
  const below = shades(cssColour("--below"));
  const above = shades(cssColour("--above"));
  return (value, bytes, at) => {
    const scale = value < 0 ? below : above;
    const shade = Math.round(Math.min(1, Math.abs(value) / limit) * SHADES) * 3;
    for (let c = 0; c < 3; c += 1) bytes[at + c] = scale[shade + c];
    bytes[at + 3] = 255;
  };
}

/** paint(value, bytes, at) for weights from 0 to 1, towards a CSS colour #rrggbb. */
function weightScale(colour) {
  const scale = shades(colour);
  return (value, bytes, at) => {
    const shade = Math.round(Math.min(1, Math.max(0, value)) * SHADES) * 3;
    for (let c = 0; c < 3; c += 1) bytes[at + c] = scale[shade + c];
    bytes[at + 3] = 255;
  };
}

function themeChanged() {
  const dark = theme() === "dark";
  const button = find("#theme");
  button.textContent = dark ? "Light" : "Dark";
  button.setAttribute("aria-label", dark ? "Change to light colours" : "Change to dark colours");
  for (const draw of drawings) draw();
}

function startTheme() {
  find("#theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
    themeChanged();
  });
  preferredDark.addEventListener("change", themeChanged);
  themeChanged();
}
