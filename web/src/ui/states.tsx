/** Placeholders for missing content: empty, loading, or failed. */
import clsx from "clsx";
import { CircleAlert, WifiOff } from "lucide-react";
import type { ReactNode } from "react";
import { ApiError } from "@/api/client";
import { Button } from "./button";

export function Empty({
  title,
  children,
  action,
  icon,
}: {
  title: ReactNode;
  children?: ReactNode;
  action?: ReactNode;
  icon?: ReactNode;
}) {
  return (
    <div className="mx-auto flex max-w-sm flex-col items-center gap-2 px-4 py-10 text-center">
      {icon && <div className="text-faint">{icon}</div>}
      <div className="font-medium">{title}</div>
      {children && <div className="text-[13px] text-soft">{children}</div>}
      {action && <div className="mt-2">{action}</div>}
    </div>
  );
}

export function Skeleton({ className }: { className?: string }) {
  return <div className={clsx("animate-pulse rounded bg-sunken", className)} aria-hidden />;
}

export function Loading({ lines = 4, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div className="flex flex-col gap-2 p-4" role="status" aria-label={label}>
      {Array.from({ length: lines }, (_, index) => (
        <Skeleton key={index} className={clsx("h-4", index % 3 === 2 ? "w-2/5" : index % 2 ? "w-4/5" : "w-full")} />
      ))}
    </div>
  );
}

export function ErrorState({ error, retry }: { error: unknown; retry?: () => void }) {
  const offline = error instanceof ApiError && error.status === 0;
  const Icon = offline ? WifiOff : CircleAlert;
  return (
    <div role="alert" className="mx-auto flex max-w-md flex-col items-center gap-2 px-4 py-10 text-center">
      <Icon className="size-6 text-bad" aria-hidden />
      <p className="font-medium">{offline ? "Not connected" : "Something went wrong"}</p>
      <p className="text-[13px] text-soft">{errorMessage(error)}</p>
      {error instanceof ApiError && error.problem.requestId && (
        <p className="font-mono text-2xs text-faint">request {error.problem.requestId}</p>
      )}
      {retry && (
        <Button className="mt-2" onClick={retry}>
          Retry
        </Button>
      )}
    </div>
  );
}

export function errorMessage(error: unknown): string {
  if (error instanceof ApiError) {
    const unsaid = error.problem.errors?.filter((field) => !error.message.includes(field.message));
    const fields = unsaid?.map((field) => `${field.field}: ${field.message}`).join(" ");
    return [error.message, fields].filter(Boolean).join(" ");
  }
  return error instanceof Error ? error.message : String(error);
}

interface QueryState<T> {
  data: T | undefined;
  error: unknown;
  isPending: boolean;
  refetch: () => unknown;
}

/** Render a query's data, its loading state or its error. Existing data stays visible while it is refetched, even if that fails. */
export function Loaded<T>({
  query,
  children,
  loading,
}: {
  query: QueryState<T>;
  children: (data: T) => ReactNode;
  loading?: ReactNode;
}) {
  if (query.data !== undefined) return children(query.data);
  if (query.isPending && !query.error) return loading ?? <Loading />;
  return <ErrorState error={query.error} retry={() => query.refetch()} />;
}
