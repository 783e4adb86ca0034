import { getRouteApi } from "@tanstack/react-router";
import { useHelpDocument } from "@/api/queries/platform";
import { Markdown } from "@/ui/markdown";
import { Page } from "@/ui/page";
import { SideTabs } from "@/ui/side-tabs";
import { Loaded } from "@/ui/states";
import { PAGES, withOwnLinks } from "./pages";

const route = getRouteApi("/inside/help");

/** The documentation of the installed version, bundled with the platform. */
export function HelpPage() {
  const { tab } = route.useSearch();
  const shown = PAGES.find((candidate) => candidate.id === tab)?.id ?? "README";
  const query = useHelpDocument(shown);
  return (
    <Page title="Help">
      <SideTabs tabs={PAGES} value={shown} label="Documentation">
        <article className="rounded-lg border bg-surface px-4 py-3">
          <Loaded query={query}>{(text) => <Markdown text={withOwnLinks(text)} />}</Loaded>
        </article>
      </SideTabs>
    </Page>
  );
}
