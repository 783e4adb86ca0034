/** The repository's documents as help pages. */

export const PAGES = [
  { id: "README", label: "Overview" },
  { id: "start", label: "First five minutes" },
  { id: "github", label: "GitHub" },
  { id: "models", label: "Model keys" },
  { id: "agents", label: "Agents" },
  { id: "tasks", label: "Tasks" },
  { id: "sessions", label: "Sessions" },
  { id: "network", label: "Network" },
  { id: "previews", label: "Previews" },
  { id: "editors", label: "Editors and SSH" },
  { id: "api", label: "API and MCP" },
  { id: "e2b", label: "E2B SDKs" },
  { id: "templates", label: "Templates" },
  { id: "e2b-compatibility", label: "E2B compatibility" },
  { id: "e2b-clients", label: "E2B clients" },
  { id: "team", label: "A team" },
  { id: "operating", label: "Operating" },
  { id: "security-model", label: "Security model" },
  { id: "performance", label: "Performance" },
  { id: "features", label: "Features" },
  { id: "reference/settings", label: "Settings" },
  { id: "reference/events", label: "Events" },
  { id: "reference/api", label: "Routes of the API" },
];

/** A table with images. */
const GALLERY = /^(?:\|.*\n)*\|.*!\[.*\n(?:\|.*\n)*/gm;
/** A sentence that introduces an image, and the image. */
const LEADING = /:\n\n!\[[^\]]*\]\([^)]*\)$/gm;
const LINK = /(!?)\[((?:[^[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)/g;
const DOCUMENT = /^(?:\.\.\/|\.\/)?(?:docs\/)?((?:reference\/)?[\w-]+)\.md(?:#.*)?$/;

/** Point links between documents to help pages. Remove images and links to documents that are not included. */
export function withOwnLinks(text: string): string {
  const plain = text.replace(GALLERY, "").replace(LEADING, ".");
  return plain.replace(LINK, (whole, picture: string, label: string, target: string) => {
    if (picture) return "";
    if (/^[a-z]+:/.test(target)) return whole;
    const id = DOCUMENT.exec(target)?.[1];
    return PAGES.some((page) => page.id === id) ? `[${label}](/help?tab=${id})` : label;
  });
}
