import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { Tooltip } from "radix-ui";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError, onSignedOut } from "@/api/client";
import { makeRouter } from "@/routes";
import { Toasts } from "@/shell/toasts";
import "./styles.css";

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 30_000, // events say what is old; this is for the time between two looks
      refetchOnWindowFocus: false,
      retry: (failures, error) =>
        failures < 2 && !(error instanceof ApiError && error.status >= 400 && error.status < 500),
    },
  },
});
const router = makeRouter(client);

const RELOADED = "sandyard.reloaded";
const PATIENCE_MS = 10_000;

// The platform was updated under an open page, whose pieces are no longer there: what is new is loaded, once. Drafts are kept.
// The failure is left as it is: the router knows it and waits for the new page, while a piece that is undefined breaks the old one.
addEventListener("vite:preloadError", () => {
  if (Date.now() - Number(sessionStorage.getItem(RELOADED)) < PATIENCE_MS) return;
  sessionStorage.setItem(RELOADED, String(Date.now()));
  location.reload();
});

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
