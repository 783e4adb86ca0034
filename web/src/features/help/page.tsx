import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { Page } from "@/shell/page";
import { Markdown } from "@/ui/markdown";
import { SideTabs } from "@/ui/side-tabs";
import { Loaded } from "@/ui/states";
import { PAGES, withOwnLinks } from "./pages";

const route = getRouteApi("/inside/help");
const TEXTS = import.meta.glob<string>(["../../../../README.md", "../../../../docs/*.md"], {
  query: "?raw",
  import: "default",
});

/** The documentation of the installed version, bundled with the platform. */
export function HelpPage() {
  const { tab } = route.useSearch();
  const shown = PAGES.find((one) => one.id === tab)?.id ?? "README";
  const query = useQuery({
    queryKey: ["help", shown],
    queryFn: async () => {
      const load = Object.entries(TEXTS).find(([path]) => path.endsWith(`/${shown}.md`))?.[1];
      return load ? withOwnLinks(await load()) : "";
    },
    staleTime: Number.POSITIVE_INFINITY,
  });
  return (
    <Page title="Help">
      <SideTabs tabs={PAGES} value={shown} label="Documentation">
        <article className="rounded-lg border bg-surface px-4 py-3">
          <Loaded query={query}>{(text) => <Markdown text={text} />}</Loaded>
        </article>
      </SideTabs>
    </Page>
  );
}
