// Helpers for elements. Text from outside is only ever set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") node.className = value;
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// Announced by screen readers, not visible.
export function announce(message) {
  $("announcement").textContent = message;
}

export const quoted = (names) => names.map((name) => `“${name}”`).join(", ");

export const counted = (number, noun, plural = `${noun}s`) => `${number} ${number === 1 ? noun : plural}`;

// Tiny images look better as squares than blurred.
export function sharpen(image) {
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
  return image;
}

export const isImage = (file) => file.type.startsWith("image/");

// Accepts files by selection and by drop on the label around the input.
export function acceptFiles(input, accept) {
  const zone = input.closest(".drop");
  input.addEventListener("change", () => {
    accept([...input.files]);
    input.value = "";
  });
  for (const kind of ["dragenter", "dragover"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.add("over");
    });
  }
  for (const kind of ["dragleave", "drop"]) zone.addEventListener(kind, () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    accept([...event.dataTransfer.files]);
  });
}
