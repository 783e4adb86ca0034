import { Component, type ReactNode } from "react";
import { ErrorState } from "@/ui/states";

/** A panel that could not be loaded or shown does not take the page with it. Give it a key: another panel begins anew. */
export class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    // a part of the page that was not loaded once is not asked for again before a reload
    return this.state.error === null ? (
      this.props.children
    ) : (
      <ErrorState error={this.state.error} retry={() => location.reload()} />
    );
  }
}
