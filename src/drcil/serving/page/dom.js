// Small helpers for elements. Text from outside is only ever set as text.

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Read out by screen readers, and not shown.
export function announce(sentence) {
  $("news").textContent = sentence;
}

export const quoted = (names) => names.map((name) => `“${name}”`).join(", ");

export const counted = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

// Few pixels look better as squares than blurred.
export function sharpen(image) {
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 64));
  return image;
}

export const isImage = (file) => file.type.startsWith("image/");

// A label around a file input takes files by choice and by drop.
export function takesFiles(input, take) {
  const zone = input.closest(".drop");
  input.addEventListener("change", () => {
    take([...input.files]);
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
    take([...event.dataTransfer.files]);
  });
}
