import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { Tooltip } from "radix-ui";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, onSignedOut } from "@/api/client";
import { makeRouter } from "@/routes";
import { reloadAfterMissingChunks } from "@/shell/missing-chunks";
import { Toasts } from "@/shell/toasts";
import "./styles.css";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000, // events invalidate queries; this only avoids refetching on every mount
      refetchOnWindowFocus: false,
      retry: (failures, error) =>
        failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
    },
  },
});
const router = makeRouter(client);

reloadAfterMissingChunks();

onSignedOut(() => {
  if (router.state.location.pathname === "/sign-in") return;
  client.clear();
  void router.navigate({ to: "/sign-in", search: { next: router.state.location.href } });
});

const root = document.getElementById("root");
if (root)
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <Tooltip.Provider delayDuration={400}>
          <RouterProvider router={router} />
          <Toasts />
        </Tooltip.Provider>
      </QueryClientProvider>
    </StrictMode>,
  );
