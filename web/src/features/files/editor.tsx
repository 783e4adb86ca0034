import { HighlightStyle, type LanguageSupport, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState } from "@codemirror/state";
import { keymap } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { basicSetup, EditorView } from "codemirror";
import { type RefObject, useEffect, useRef } from "react";
import { extensionOf } from "./paths";

const LANGUAGES: Record<string, () => Promise<LanguageSupport>> = {
  py: async () => (await import("@codemirror/lang-python")).python(),
  js: async () => (await import("@codemirror/lang-javascript")).javascript(),
  jsx: async () => (await import("@codemirror/lang-javascript")).javascript({ jsx: true }),
  ts: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true }),
  tsx: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true, jsx: true }),
  json: async () => (await import("@codemirror/lang-json")).json(),
  css: async () => (await import("@codemirror/lang-css")).css(),
  html: async () => (await import("@codemirror/lang-html")).html(),
  md: async () => (await import("@codemirror/lang-markdown")).markdown(),
  yaml: async () => (await import("@codemirror/lang-yaml")).yaml(),
};
const ALIASES: Record<string, string> = {
  pyi: "py",
  mjs: "js",
  cjs: "js",
  mts: "ts",
  cts: "ts",
  htm: "html",
  xml: "html",
  svg: "html",
  yml: "yaml",
  scss: "css",
  less: "css",
  markdown: "md",
};

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.bool, tags.null, tags.tagName, tags.modifier], color: "var(--hl-keyword)" },
  { tag: [tags.string, tags.regexp, tags.inserted], color: "var(--hl-string)" },
  { tag: [tags.comment, tags.meta, tags.quote], color: "var(--faint)" },
  { tag: [tags.number, tags.attributeName, tags.propertyName, tags.atom], color: "var(--hl-number)" },
  {
    tag: [
      tags.function(tags.variableName),
      tags.definition(tags.variableName),
      tags.typeName,
      tags.className,
      tags.heading,
    ],
    color: "var(--hl-title)",
  },
  { tag: tags.heading, fontWeight: "600" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: tags.strong, fontWeight: "600" },
  { tag: [tags.link, tags.url], color: "var(--info)" },
  { tag: [tags.invalid, tags.deleted], color: "var(--bad)" },
]);

const LOOK = EditorView.theme({
  "&": { height: "100%", fontSize: "12.5px", backgroundColor: "var(--surface)", color: "var(--text)" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--font-mono)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--accent)" },
  ".cm-cursor": { borderLeftColor: "var(--accent)" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--faint)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--hover) 60%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "var(--info-soft)",
  },
  ".cm-selectionMatch": { backgroundColor: "var(--idle-soft)" },
  ".cm-searchMatch": { backgroundColor: "var(--warn-soft)", outline: "1px solid var(--warn)" },
  ".cm-searchMatch-selected": { backgroundColor: "var(--accent-soft)" },
  ".cm-matchingBracket": { backgroundColor: "var(--add-strong) !important" },
  ".cm-panels": { backgroundColor: "var(--raised)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-textfield, .cm-button": {
    backgroundColor: "var(--surface)",
    backgroundImage: "none",
    color: "var(--text)",
    border: "1px solid var(--line-strong)",
    borderRadius: "4px",
  },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--hover)", color: "var(--text)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--sunken)", borderColor: "var(--line)", color: "var(--soft)" },
});

interface Props {
  path: string;
  text: string;
  onChange: (text: string) => void;
  onSave: () => void;
  /** Set to a function that returns the current text. */
  readText: RefObject<(() => string) | null>;
}

/** A code editor. Created once with the initial text: use another key for another text. */
export default function Editor(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const latest = useRef(props);
  latest.current = props;
  useEffect(() => {
    const { path, text, readText } = latest.current;
    const language = new Compartment();
    const save = () => {
      latest.current.onSave();
      return true;
    };
    const parts = [
      language.of([]),
      keymap.of([{ key: "Mod-s", preventDefault: true, run: save }]),
      basicSetup,
      EditorState.lineSeparator.of(text.includes("\r\n") ? "\r\n" : "\n"),
      EditorView.contentAttributes.of({ "aria-label": `Text of ${path}` }),
      syntaxHighlighting(COLOURS),
      LOOK,
      EditorView.updateListener.of((update) => {
        if (update.docChanged) latest.current.onChange(update.state.sliceDoc());
      }),
    ];
    const view = new EditorView({
      parent: box.current as HTMLElement,
      state: EditorState.create({ doc: text, extensions: parts }),
    });
    readText.current = () => view.state.sliceDoc();
    let gone = false;
    const name = extensionOf(path);
    void LANGUAGES[ALIASES[name] ?? name]?.().then((loaded) => {
      if (!gone) view.dispatch({ effects: language.reconfigure(loaded) });
    });
    return () => {
      gone = true;
      readText.current = null;
      view.destroy();
    };
  }, []);
  return <div ref={box} className="min-h-0 flex-1 overflow-hidden" />;
}
