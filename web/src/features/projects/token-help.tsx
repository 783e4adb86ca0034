import clsx from "clsx";
import { hostOf } from "@/model/forge";

/** Where to create a token for a repository on GitHub, and which permissions it needs. Renders nothing for other repositories. */
export function TokenHelp({ repository, className }: { repository: string; className?: string }) {
  if (hostOf(repository) !== "github.com") return null;
  return (
    <p className={clsx("text-xs text-soft", className)}>
      <a
        href="https://github.com/settings/personal-access-tokens/new"
        target="_blank"
        rel="noreferrer noopener"
        className="text-accent underline underline-offset-2"
      >
        Create a token on GitHub
      </a>{" "}
      for this repository, with read and write access to Contents and Pull requests, and read access to Checks and
      Commit statuses.
    </p>
  );
}
