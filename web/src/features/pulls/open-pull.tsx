/** Push the branch and open a pull request. On a plain remote, only push the branch. */
import { GitPullRequestArrow } from "lucide-react";
import { type FormEvent, useState } from "react";
import { useCheckout } from "@/api/queries/git";
import { useProject } from "@/api/queries/projects";
import { useOpenPullRequest } from "@/api/queries/pull-requests";
import { Operations } from "@/features/changes/operations";
import { ForgeNote } from "@/features/projects/forge-note";
import { forgeOf, splitNames } from "@/model/forge";
import { Button } from "@/ui/button";
import { Field, Input, Switch, Textarea } from "@/ui/field";
import { Loaded } from "@/ui/states";
import { toast } from "@/ui/toast";
import { ForgeError } from "./forge-error";

export function OpenPull({ sandboxId, projectId }: { sandboxId: string; projectId: string }) {
  const project = useProject(projectId, { enabled: !!projectId });
  const checkout = useCheckout(sandboxId);
  return (
    <div className="min-h-0 flex-1 overflow-y-auto">
      <Operations sandboxId={sandboxId} />
      <Loaded query={project}>
        {(found) => (
          <>
            <ForgeNote project={found} className="mx-3 mt-3" />
            <Form
              sandboxId={sandboxId}
              projectId={projectId}
              plain={forgeOf(found) === "plain"}
              draft={found.settings.forge?.draft ?? false}
              branch={checkout.data?.branch ?? "the branch"}
              base={checkout.data?.baseBranch ?? found.baseBranch ?? "the base branch"}
            />
          </>
        )}
      </Loaded>
    </div>
  );
}

function Form({
  sandboxId,
  projectId,
  plain,
  draft: draftByDefault,
  branch,
  base,
}: {
  sandboxId: string;
  projectId: string;
  plain: boolean;
  draft: boolean;
  branch: string;
  base: string;
}) {
  const [title, setTitle] = useState("");
  const [body, setBody] = useState("");
  const [draft, setDraft] = useState(draftByDefault);
  const [labels, setLabels] = useState("");
  const [reviewers, setReviewers] = useState("");
  const [baseBranch, setBaseBranch] = useState("");
  const open = useOpenPullRequest({
    onSuccess: (pull) =>
      toast.success(pull.number === null ? `Pushed ${pull.headBranch}` : `Opened pull request #${pull.number}`),
  });
  const send = () =>
    open.mutate({
      sandboxId,
      title: title.trim() || null,
      body: body.trim() || null,
      draft: plain ? null : draft,
      labels: splitNames(labels),
      reviewers: splitNames(reviewers),
      assignees: [],
      base: baseBranch.trim() || null,
    });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!open.isPending) send();
  };
  return (
    <>
      <ForgeError
        title={plain ? "Could not push the branch" : "Could not open the pull request"}
        error={open.error}
        projectId={projectId}
        onRetry={() => send()}
        onClose={() => open.reset()}
      />
      <form onSubmit={submit} className="mx-auto flex max-w-2xl flex-col gap-3 px-3 py-5">
        <div className="flex items-start gap-3">
          <GitPullRequestArrow className="mt-0.5 size-5 shrink-0 text-faint" aria-hidden />
          <div className="min-w-0">
            <h2 className="text-[15px] font-semibold">{plain ? "Branch not pushed yet" : "No pull request yet"}</h2>
            <p className="text-[13px] text-soft [overflow-wrap:anywhere]">
              {plain ? (
                <>
                  The repository is a plain Git remote without pull requests.{" "}
                  <span className="font-mono text-xs">{branch}</span> will be pushed there. You can then compare it with{" "}
                  <span className="font-mono text-xs">{base}</span> here.
                </>
              ) : (
                <>
                  This pushes all commits of <span className="font-mono text-xs">{branch}</span> and opens a pull
                  request into <span className="font-mono text-xs">{base}</span>.
                </>
              )}
            </p>
          </div>
        </div>
        <Field label="Title" hint="Optional. Generated from the task or the commits if empty.">
          {(control) => (
            <Input {...control} value={title} maxLength={250} onChange={(event) => setTitle(event.target.value)} />
          )}
        </Field>
        {!plain && (
          <>
            <Field
              label="Description"
              hint="Optional, in Markdown. Generated from the task, the commits and the checks if empty."
            >
              {(control) => (
                <Textarea
                  {...control}
                  rows={6}
                  value={body}
                  maxLength={60_000}
                  onChange={(event) => setBody(event.target.value)}
                />
              )}
            </Field>
            <div className="grid gap-3 sm:grid-cols-2">
              <Field label="Labels" hint="Separate with commas.">
                {(control) => <Input {...control} value={labels} onChange={(event) => setLabels(event.target.value)} />}
              </Field>
              <Field label="Reviewers" hint="Usernames on the forge, separated with commas.">
                {(control) => (
                  <Input {...control} value={reviewers} onChange={(event) => setReviewers(event.target.value)} />
                )}
              </Field>
            </div>
          </>
        )}
        <Field label="Base branch" hint={`Optional. Default: ${base}.`}>
          {(control) => (
            <Input
              {...control}
              value={baseBranch}
              placeholder={base}
              className="font-mono"
              onChange={(event) => setBaseBranch(event.target.value)}
            />
          )}
        </Field>
        <div className="flex flex-wrap items-center justify-between gap-2">
          {plain ? <span /> : <Switch checked={draft} onChange={setDraft} label="Open as draft" />}
          <Button type="submit" look="primary" busy={open.isPending}>
            {plain ? "Push branch" : draft ? "Open draft" : "Open pull request"}
          </Button>
        </div>
      </form>
    </>
  );
}
