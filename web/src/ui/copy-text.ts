import { toast } from "./toast";

/** Copy a text to the clipboard. If the browser refuses, show an error and return false. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text); // without HTTPS there is no clipboard, except on localhost
    return true;
  } catch {
    toast.error("The browser does not allow this page to copy.", {
      description: "Most browsers allow it only over HTTPS or on localhost.",
    });
    return false;
  }
}
