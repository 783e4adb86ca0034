import { Link } from "@tanstack/react-router";
import { ArrowLeft } from "lucide-react";

/** Link back to the welcome page, where the user left off. */
export function BackToWelcome({ project }: { project?: string | undefined }) {
  return (
    <Link
      to="/welcome"
      search={{ project }}
      className="inline-flex h-8 items-center gap-1.5 rounded-md bg-accent px-3 text-[13px] font-medium text-on-accent hover:bg-accent-hover"
    >
      <ArrowLeft className="size-4" aria-hidden /> Back to Welcome
    </Link>
  );
}
