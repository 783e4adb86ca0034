import { Code2, PanelRight } from "lucide-react";
import { hasCode, type Schemas } from "@/api/client";
import { useStartEditor } from "@/api/queries/previews";
import { useRemoteAccess } from "@/api/queries/sessions";
import { showPreview } from "@/features/previews/open-preview";
import { Button } from "@/ui/button";
import { CopyButton } from "@/ui/code";
import { Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";

/** Open the session in an editor: VS Code over SSH, plain SSH, and code-server if the template has it. */
export function Editors({ sessionId, sandboxId }: { sessionId: string; sandboxId: string }) {
  const query = useRemoteAccess(sessionId);
  return <Loaded query={query}>{(remote) => <EditorLinks remote={remote} sandboxId={sandboxId} />}</Loaded>;
}

function EditorLinks({ remote, sandboxId }: { remote: Schemas["RemoteView"]; sandboxId: string }) {
  const editor = useStartEditor({
    onSuccess: ({ port, path }) => showPreview({ sandboxId, port, path, title: "Editor" }),
    onError: showError("Could not open the editor"),
  });
  const missing = remote.editor.available === false || hasCode(editor.error, "no_editor");
  const vscode = remote.vscodeUrl.startsWith("vscode://") ? remote.vscodeUrl : undefined;
  return (
    <div className="flex flex-col gap-3">
      <div className="flex flex-wrap gap-2">
        <a
          href={vscode}
          className="inline-flex h-8 items-center gap-1.5 rounded-md border border-line-strong bg-surface px-3 text-[13px] font-medium hover:bg-hover"
        >
          <Code2 className="size-4" aria-hidden /> Open in VS Code
        </a>
        {!missing && (
          <Button busy={editor.isPending} onClick={() => editor.mutate(sandboxId)}>
            <PanelRight className="size-4" aria-hidden /> Open editor in browser
          </Button>
        )}
      </div>
      {remote.sshAvailable === false && (
        <p className="text-xs text-warn">This sandbox has no SSH server (sshd), so SSH and VS Code cannot connect.</p>
      )}
      <details className="text-[13px]">
        <summary className="cursor-pointer text-soft">One-time SSH setup</summary>
        <ul className="mt-2 flex flex-col gap-1">
          {remote.setup.map((line) => (
            <CommandLine key={line} line={line} />
          ))}
        </ul>
      </details>
      <ul className="flex flex-col gap-1" aria-label="Commands">
        <CommandLine line={remote.sshCommand} />
        <CommandLine line={remote.codeCommand} />
      </ul>
      {missing && <p className="text-xs text-faint">Install code-server in the template to edit in the browser.</p>}
    </div>
  );
}

function CommandLine({ line }: { line: string }) {
  return (
    <li className="flex items-center gap-1 rounded-md border bg-sunken pl-2">
      <code className="min-w-0 flex-1 py-1 font-mono text-xs break-all">{line}</code>
      <CopyButton text={line} label={`Copy ${line}`} />
    </li>
  );
}
