/** The documents of the repository as pages of this site. */

export const PAGES = [
  { id: "README", label: "Overview" },
  { id: "agents", label: "Agents" },
  { id: "previews", label: "Previews" },
  { id: "editors", label: "Editors and SSH" },
  { id: "operating", label: "Operating" },
  { id: "security-model", label: "Security model" },
  { id: "e2b-compatibility", label: "E2B compatibility" },
  { id: "e2b-clients", label: "E2B clients" },
  { id: "performance", label: "Performance" },
];

/** A table that has pictures in it. */
const GALLERY = /^(?:\|.*\n)*\|.*!\[.*\n(?:\|.*\n)*/gm;
/** A sentence that leads to a picture, and the picture. */
const LEADING = /:\n\n!\[[^\]]*\]\([^)]*\)$/gm;
const LINK = /(!?)\[((?:[^[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)/g;
const DOCUMENT = /^(?:\.\.\/|\.\/)?(?:docs\/)?([\w-]+)\.md(?:#.*)?$/;

/** With links between the documents leading to these pages. Pictures, and links to what is not here, are left out. */
export function withOwnLinks(text: string): string {
  const plain = text.replace(GALLERY, "").replace(LEADING, ".");
  return plain.replace(LINK, (whole, picture: string, label: string, target: string) => {
    if (picture) return "";
    if (/^[a-z]+:/.test(target)) return whole;
    const id = DOCUMENT.exec(target)?.[1];
    return PAGES.some((page) => page.id === id) ? `[${label}](/help?tab=${id})` : label;
  });
}
