import { describe, expect, it } from "vitest";
import { parsePatch, unquotePath } from "./patch";

const CHANGE = `diff --git a/app/login.py b/app/login.py
index 3279515..e056978 100644
--- a/app/login.py
+++ b/app/login.py
@@ -6,5 +6,5 @@ import hashlib
 def check(user, password):
-    return False
-    digest = md5(password)
+    return None
+    digest = sha256(password)
     return digest
 
@@ -19,2 +19,3 @@
 def logout(session):
+--- not a header
     return True
`;

describe("parsePatch", () => {
  it("numbers lines on both sides and pairs replaced lines", () => {
    const [first, second] = parsePatch(CHANGE).hunks;
    expect(first?.heading).toBe("import hashlib");
    expect(first?.lines.map((line) => [line.kind, line.old, line.new, line.counterpart])).toEqual([
      ["same", 6, 6, -1],
      ["del", 7, 0, 3],
      ["del", 8, 0, 4],
      ["add", 0, 7, 1],
      ["add", 0, 8, 2],
      ["same", 9, 9, -1],
      ["same", 10, 10, -1],
    ]);
    expect(second?.lines[1]).toMatchObject({ kind: "add", text: "--- not a header", new: 20 });
    expect(second?.lines).toHaveLength(3);
  });

  it("detects a missing newline at the end, on each side", () => {
    const { hunks } = parsePatch(
      "--- a/e\n+++ b/e\n@@ -1 +1 @@\n-no newline\n\\ No newline at end of file\n+still none\n\\ No newline at end of file\n",
    );
    expect(hunks[0]?.lines.map((line) => [line.text, line.noNewline])).toEqual([
      ["no newline", true],
      ["still none", true],
    ]);
  });

  it("strips CRLF from the text and records it", () => {
    const { hunks } = parsePatch("@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\n");
    expect(hunks[0]?.lines.map((line) => [line.text, line.crlf])).toEqual([
      ["one", true],
      ["two", true],
      ["2", false],
    ]);
  });

  it("reads renames, copies and modes", () => {
    const renamed = parsePatch(
      'diff --git a/old b/new\nsimilarity index 93%\nrename from old\nrename to "n\\303\\257.md"\nold mode 100644\nnew mode 100755\n',
    );
    expect(renamed).toMatchObject({
      renamed: true,
      similarity: 93,
      oldPath: "old",
      newPath: "nï.md",
      oldMode: "100644",
      newMode: "100755",
    });
    expect(renamed.hunks).toEqual([]);
  });

  it("reads quoted names with the trailing tab that git adds", () => {
    const patch = parsePatch(
      '--- "a/odd dir/na\\303\\257ve.txt"\t\n+++ "b/odd dir/na\\303\\257ve.txt"\t\n@@ -1 +1,2 @@\n odd\n+more\n',
    );
    expect(patch.oldPath).toBe("odd dir/naïve.txt");
    expect(patch.newPath).toBe("odd dir/naïve.txt");
  });

  it("reads /dev/null as a missing file, and a hunk header without a count as one line", () => {
    const gone = parsePatch("deleted file mode 100644\n--- a/gone.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-to be deleted\n");
    expect(gone).toMatchObject({ oldPath: "gone.md", newPath: null, oldMode: "100644" });
    expect(gone.hunks[0]).toMatchObject({ oldCount: 1, newCount: 0 });
  });

  it("joins the two parts of a file whose type changed", () => {
    const patch = parsePatch(
      "diff --git a/x b/x\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-text\ndiff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+target\n\\ No newline at end of file\n",
    );
    expect(patch.hunks).toHaveLength(2);
    expect(patch).toMatchObject({ oldMode: "100644", newMode: "120000" });
  });

  it("tolerates garbage and a truncated hunk", () => {
    expect(parsePatch("").hunks).toEqual([]);
    expect(parsePatch("@@ -1,9 +1,9 @@\n one\n?what\n").hunks[0]?.lines).toHaveLength(1);
    expect(parsePatch("Binary files a/x and b/x differ\n").binary).toBe(true);
  });
});

describe("unquotePath", () => {
  it("undoes git's quoting", () => {
    expect(unquotePath("plain")).toBe("plain");
    expect(unquotePath('"tab\\there \\"quoted\\" back\\\\slash"')).toBe('tab\there "quoted" back\\slash');
    expect(unquotePath('"emoji 🙂 \\360\\237\\231\\202"')).toBe("emoji 🙂 🙂");
  });
});
