/** Commands in a sandbox and their output. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { decodeBase64 } from "@/lib/base64";
import { api, unwrap } from "../client";
import { keys } from "../keys";
import { defineMutation } from "../mutation";
import type { Command, OutputStream } from "../types";

const pathOf = (commandId: string) => ({ params: { path: { command_id: commandId } } });

const readCommand = (id: string): Promise<Command> => unwrap(api.GET("/api/v1/commands/{command_id}", pathOf(id)));

const readOutput = (id: string, query: { stream: OutputStream; offset?: number; limit: number }) =>
  unwrap(api.GET("/api/v1/commands/{command_id}/output", { params: { ...pathOf(id).params, query } }));

/** The commands of a sandbox, newest first, loaded page by page. */
export const useCommandPages = (sandboxId: string) =>
  useInfiniteQuery({
    queryKey: keys.commands(sandboxId),
    queryFn: ({ pageParam }) =>
      unwrap(
        api.GET("/api/v1/sandboxes/{sandbox_id}/commands", {
          params: { path: { sandbox_id: sandboxId }, query: { cursor: pageParam, limit: 50 } },
        }),
      ),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.nextCursor ?? undefined,
  });

export const useCommand = (sandboxId: string, id: string, options: { enabled: boolean }) =>
  useQuery({ queryKey: keys.command(sandboxId, id), queryFn: () => readCommand(id), ...options });

const OUTPUT_START = 256 * 1024;

/** The first 256 KiB of each of a command's output streams; for most commands that is all of it. */
export const useCommandOutput = (id: string, options: { enabled: boolean }) =>
  useQuery({
    queryKey: keys.commandOutput(id),
    queryFn: () =>
      Promise.all([
        readOutput(id, { stream: "stdout", limit: OUTPUT_START }),
        readOutput(id, { stream: "stderr", limit: OUTPUT_START }),
      ]),
    ...options,
  });

const OUTPUT_TAIL = 4000;

/** The end of the output of a command that has ended. An empty id disables the query. */
export const useCommandTail = (sandboxId: string | null | undefined, id: string) =>
  useQuery({
    queryKey: keys.commandTail(sandboxId, id),
    enabled: id !== "",
    staleTime: Number.POSITIVE_INFINITY,
    queryFn: async () => {
      const command = await readCommand(id);
      const readTail = async (stream: OutputStream, size: number) => {
        if (!size) return "";
        const offset = Math.max(0, size - OUTPUT_TAIL);
        const page = await readOutput(id, { stream, offset, limit: OUTPUT_TAIL });
        // not text if the tail begins in the middle of a character
        return page.text ?? new TextDecoder().decode(decodeBase64(page.base64 ?? "")).replace(/^\uFFFD+/, "");
      };
      return [await readTail("stdout", command.stdoutBytes), await readTail("stderr", command.stderrBytes)]
        .filter((text) => text.trim())
        .join("\n");
    },
  });

interface Execution {
  sandboxId: string;
  command: string;
  cwd: string | null;
  timeout: number;
}

/** Start a command and return it without waiting for its end. */
export const useExecuteCommand = defineMutation({
  request: async ({ sandboxId, cwd, ...execution }: Execution) => {
    const response = api.POST("/api/v1/sandboxes/{sandbox_id}/execute", {
      params: { path: { sandbox_id: sandboxId } },
      body: { ...execution, cwd: cwd || null, background: true },
    });
    return (await unwrap(response)) as unknown as Command; // With `background`, the response is 202 and contains the command.
  },
  onSuccess: (client, _, { sandboxId }) => void client.invalidateQueries({ queryKey: keys.commands(sandboxId) }),
});

export const useKillCommand = defineMutation({
  request: ({ id }: { id: string; sandboxId: string }) =>
    unwrap(api.POST("/api/v1/commands/{command_id}/kill", pathOf(id))),
  onSuccess: (client, _, { sandboxId }) => client.invalidateQueries({ queryKey: keys.commands(sandboxId) }),
});

const DOWNLOAD_PAGE = 1 << 20;

interface OutputDownload {
  commandId: string;
  stream: OutputStream;
  onProgress: (percent: number) => void;
}

/** Read the complete output of a command. */
export const useReadFullOutput = defineMutation({
  request: async ({ commandId, stream, onProgress }: OutputDownload) => {
    const parts: BlobPart[] = [];
    for (let offset = 0; ; ) {
      const page = await readOutput(commandId, { stream, offset, limit: DOWNLOAD_PAGE });
      parts.push(page.text ?? (decodeBase64(page.base64 ?? "") as Uint8Array<ArrayBuffer>));
      onProgress(page.total ? Math.round((page.end / page.total) * 100) : 100);
      if (page.end >= page.total || page.end === offset) break;
      offset = page.end;
    }
    return new Blob(parts, { type: "application/octet-stream" });
  },
});
