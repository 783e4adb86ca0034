import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { Tooltip } from "radix-ui";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

const editor = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  vi.stubGlobal("matchMedia", () => ({ matches: true }));
  return { error: null as Error | null };
});
vi.mock("@/api/queries/previews", () => ({ useStartEditor: () => editor }));
vi.mock("@/features/previews/open-preview", () => ({ showPreview: () => undefined }));

import { ApiError } from "@/api/client";
import { keys } from "@/api/keys";
import { Editors } from "./editors";

function show(available: boolean | null): string {
  const client = new QueryClient();
  const remote = {
    vscodeUrl: "vscode://x",
    setup: [],
    sshCommand: "ssh x",
    codeCommand: "code x",
    editor: { available },
  };
  client.setQueryData(keys.remoteAccess("ses_1"), remote);
  return renderToStaticMarkup(
    <QueryClientProvider client={client}>
      <Tooltip.Provider>
        <Editors sessionId="ses_1" sandboxId="sbx_1" />
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
}

it("offers the editor in the browser unless code-server is known to be missing", () => {
  expect(show(null)).toContain("Open editor in browser");
  expect(show(false)).toMatch(/^(?!.*Open editor in browser).*Install code-server/);
  editor.error = new ApiError(409, { code: "no_editor", detail: "The sandbox has no code-server." });
  expect(show(null)).toMatch(/^(?!.*Open editor in browser).*Install code-server/);
});
